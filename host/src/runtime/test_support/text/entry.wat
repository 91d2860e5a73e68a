;; The core instance `$main` has `run`.
(func $run (result (result (error string)))
  (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
(instance $entry (export "run" (func $run)))
(export "dchost:worker/entry@0.1.0" (instance $entry))
