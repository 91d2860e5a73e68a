;; Fills PAGES of memory again and again, each time by one instruction.
(component
  (core module $main
    (memory (export "memory") %PAGES%)
    (func (export "run") (result i32)
      (loop
        (memory.fill (i32.const 4096) (i32.const 7) (i32.const %BYTES%))
        (br 0))
      (unreachable)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
