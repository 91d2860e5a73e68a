//! The table of error codes: domain to gRPC status and detail, and back.
