;; Reports a scalar whose value has the bits VALUE, and a progress without total.
(component
  (import "dchost:worker/summary@0.1.0" (instance $summary
    (export "scalar" (func (param "tag" string) (param "step" u64) (param "value" f64)))
    (export "progress" (func (param "done" u64) (param "total" (option u64)) (param "note" string)))))
  (core module $libc (memory (export "memory") 1))
  (core instance $libc (instantiate $libc))
  (core func $scalar (canon lower (func $summary "scalar") (memory (core memory $libc "memory"))))
  (core func $progress (canon lower (func $summary "progress") (memory (core memory $libc "memory"))))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "host" "scalar" (func $scalar (param i32 i32 i64 f64)))
    (import "host" "progress" (func $progress (param i64 i32 i64 i32 i32)))
    (data (i32.const 1024) "lo\1bss\0a}")
    (func (export "run") (result i32)
      (call $scalar (i32.const 1024) (i32.const 7) (i64.const -1) (f64.reinterpret_i64 (i64.const %VALUE%)))
      (call $progress (i64.const -1) (i32.const 1) (i64.const 0) (i32.const 1024) (i32.const 7))
      (i32.const 0)))
  (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "host" (instance
    (export "scalar" (func $scalar)) (export "progress" (func $progress))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
