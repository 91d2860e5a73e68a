;; Logs LENGTH units of text at POINTER with LEVEL, in string encoding ENCODING; DATA stands at address 1024.
(component
  (import "dchost:worker/log@0.1.0" (instance $log
    (type $level' (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (export "write" (func (param "level" $level) (param "message" string)))))
  (core module $libc
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192)))
  (core instance $libc (instantiate $libc))
  (core func $log (canon lower (func $log "write") (memory (core memory $libc "memory")) string-encoding=%ENCODING%))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "host" "log" (func $log (param i32 i32 i32)))
    (data (i32.const 1024) "%DATA%")
    (func (export "run") (result i32)
      (call $log (i32.const %LEVEL%) (i32.const %POINTER%) (i32.const %LENGTH%))
      (i32.const 0)))
  (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "host" (instance
    (export "log" (func $log))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
