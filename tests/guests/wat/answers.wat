;; Answers `run` with POINTER as the address of its result; BYTES stand at address 16, text at 1024. PAGES of memory.
(component
  (core module $main
    (memory (export "memory") %PAGES%)
    (data (i32.const 16) "%BYTES%")
    (data (i32.const 1024) "as the guest says")
    (func (export "run") (result i32) (i32.const %POINTER%)))
  (core instance $main (instantiate $main))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
