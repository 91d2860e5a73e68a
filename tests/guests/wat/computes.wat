;; Counts to TURNS without a host call, then returns.
(component
  (core module $main
    (memory (export "memory") 1)
    (func (export "run") (result i32) (local $turn i64)
      (loop
        (local.set $turn (i64.add (local.get $turn) (i64.const 1)))
        (br_if 0 (i64.lt_u (local.get $turn) (i64.const %TURNS%))))
      (i32.const 0)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
