;; Returns at once; CLEANUP is what it does in its post-return function, when the host has its answer.
(component
  (core module $main
    (memory (export "memory") 1)
    (func (export "run") (result i32) (i32.const 0))
    (func (export "cleanup") (param i32) %CLEANUP%))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))
      (post-return (core func $main "cleanup"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
