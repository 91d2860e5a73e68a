;; Traps in a function whose name turns a terminal's page and poses as another task.
(component
  (core module $main
    (memory (export "memory") 1)
    (func $forged (@name "\1b[2J\1b]0;owned\07\0aworker:1 | all is well \e2\80\ae") (unreachable))
    (func (export "run") (result i32) (call $forged) (i32.const 0)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
