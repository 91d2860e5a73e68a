;; Asks for LENGTH random bytes in one call.
(component
  (import "wasi:random/random@0.2.0" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (core module $libc
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $libc (instantiate $libc))
  (core func $random (canon lower (func $random "get-random-bytes")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "host" "random" (func $random (param i64 i32)))
    (func (export "run") (result i32) (call $random (i64.const %LENGTH%) (i32.const 64)) (i32.const 0)))
  (core instance $main (instantiate $main (with "host" (instance (export "random" (func $random))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
