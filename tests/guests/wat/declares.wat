;; Declares ITEMS beside an entry that returns at once.
(component
  %ITEMS%
  (core module $main
    (memory (export "memory") 1)
    (func (export "run") (result i32) (i32.const 0)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
