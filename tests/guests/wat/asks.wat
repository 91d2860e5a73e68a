;; Asks the host for is-chief as often as it can: cheap host calls without end.
(component
  (import "dchost:worker/worker-context@0.1.0" (instance $context (export "is-chief" (func (result bool)))))
  (core func $is-chief (canon lower (func $context "is-chief")))
  (core module $main
    (import "host" "is-chief" (func $is-chief (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (result i32)
      (loop (drop (call $is-chief)) (br 0))
      (unreachable)))
  (core instance $main (instantiate $main (with "host" (instance (export "is-chief" (func $is-chief))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $main "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
