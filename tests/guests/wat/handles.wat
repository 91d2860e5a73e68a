;; Makes CALLS with handles: `$subscribe` (ns, a timer's pollable), `$block`, `$ready`, `$drop-pollable`, `$stdout`,
;; `$drop-stdout`, `$flush`. `$pollable` and `$out` are locals.
(component
  (import "wasi:io/error@0.2.0" (instance $io-error (export "error" (type (sub resource)))))
  (alias export $io-error "error" (type $io-error))
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $pollable (sub resource)))
    (export "[method]pollable.ready" (func (param "self" (borrow $pollable)) (result bool)))
    (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $p))
    (export "pollable" (type $pollable (eq $p)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "output-stream" (type $out (sub resource)))
    (alias outer 1 $io-error (type $e))
    (export "error" (type $error (eq $e)))
    (type $failure' (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $failure (eq $failure')))
    (export "[method]output-stream.blocking-flush"
      (func (param "self" (borrow $out)) (result (result (error $failure)))))))
  (alias export $streams "output-stream" (type $out))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $out (type $o))
    (export "output-stream" (type $out (eq $o)))
    (export "get-stdout" (func (result (own $out))))))
  (core module $libc (memory (export "memory") 1))
  (core instance $libc (instantiate $libc))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core func $ready (canon lower (func $poll "[method]pollable.ready")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $drop-pollable (canon resource.drop $pollable))
  (core func $stdout (canon lower (func $stdout "get-stdout")))
  (core func $drop-stdout (canon resource.drop $out))
  (core func $flush (canon lower (func $streams "[method]output-stream.blocking-flush")
    (memory (core memory $libc "memory"))))
  (core module $main
    (import "host" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "host" "ready" (func $ready (param i32) (result i32)))
    (import "host" "block" (func $block (param i32)))
    (import "host" "drop-pollable" (func $drop-pollable (param i32)))
    (import "host" "stdout" (func $stdout (result i32)))
    (import "host" "drop-stdout" (func $drop-stdout (param i32)))
    (import "host" "flush" (func $flush (param i32 i32)))
    (func (export "run") (result i32) (local $pollable i32) (local $out i32)
      %CALLS%
      (i32.const 0)))
  (core instance $main (instantiate $main (with "host" (instance
    (export "subscribe" (func $subscribe)) (export "ready" (func $ready)) (export "block" (func $block))
    (export "drop-pollable" (func $drop-pollable)) (export "stdout" (func $stdout))
    (export "drop-stdout" (func $drop-stdout)) (export "flush" (func $flush))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
