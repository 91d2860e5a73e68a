;; START is what it does in its start function, before anybody calls `run`.
(component
  (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
  (core func $exit (canon lower (func $exit "exit")))
  (core module $main
    (import "host" "exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func $start %START%)
    (start $start)
    (func (export "run") (result i32) (i32.const 0)))
  (core instance $main (instantiate $main (with "host" (instance (export "exit" (func $exit))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
