;; Asks for its arguments; REALLOC is what its allocator does when the host wants memory for them. It may call `$exit`.
(component
  (import "wasi:cli/environment@0.2.0" (instance $environment (export "get-arguments" (func (result (list string))))))
  (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
  (core func $exit (canon lower (func $exit "exit")))
  (core module $libc
    (import "host" "exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func (export "realloc") (param $old i32) (param $old-size i32) (param $align i32) (param $size i32) (result i32)
      %REALLOC%))
  (core instance $libc (instantiate $libc (with "host" (instance (export "exit" (func $exit))))))
  (core func $arguments (canon lower (func $environment "get-arguments")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "host" "arguments" (func $arguments (param i32)))
    (func (export "run") (result i32) (call $arguments (i32.const 64)) (i32.const 0)))
  (core instance $main (instantiate $main (with "host" (instance (export "arguments" (func $arguments))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
