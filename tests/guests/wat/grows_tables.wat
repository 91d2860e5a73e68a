;; Grows a table of functions until it is refused, then traps.
(component
  (core module $main
    (memory (export "memory") 1)
    (table $table 1 funcref)
    (func (export "run") (result i32)
      (loop (br_if 0 (i32.ne (table.grow $table (ref.null func) (i32.const 1000000)) (i32.const -1))))
      (unreachable)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
