;; The core instance `$main` has `list` and `call`, and `$tensor` is the type.
(func $list (result (list string))
  (canon lift (core func $main "list") (memory (core memory $libc "memory"))))
(func $call (param "name" string) (param "inputs" (list $tensor))
  (result (result (list $tensor) (error string)))
  (canon lift (core func $main "call") (memory (core memory $libc "memory"))
    (realloc (core func $libc "realloc"))))
(instance $op-entry (export "list" (func $list)) (export "call" (func $call)))
(export "dchost:worker/op-entry@0.1.0" (instance $op-entry))
