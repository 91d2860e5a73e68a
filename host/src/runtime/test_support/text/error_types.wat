(type $task' (record (field "job" string) (field "index" u32)))
(export "task" (type $task (eq $task')))
(type $code' (enum "cancelled" "unknown" "invalid-argument" "deadline-exceeded" "not-found" "already-exists"
  "permission-denied" "resource-exhausted" "failed-precondition" "aborted" "out-of-range" "unimplemented"
  "internal" "unavailable" "data-loss" "unauthenticated" "uninitialized" "peer-failed" "peer-restarted"))
(export "error-code" (type $code (eq $code')))
(type $error' (record (field "code" $code) (field "message" string) (field "tasks" (list $task))))
(export "error" (type $error (eq $error')))
