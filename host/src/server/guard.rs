//! What stands before every handler: protocol, authorization, incarnation, attempt.
