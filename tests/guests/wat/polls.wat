;; Makes TIMERS timers of an hour and one that is due, and polls a list of ENTRIES: the due one first, then all others, the
;; last again and again.
(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $pollable (sub resource)))
    (export "poll" (func (param "in" (list (borrow $pollable))) (result (list u32))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $p))
    (export "pollable" (type $pollable (eq $p)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
  (core module $libc
    (memory (export "memory") 200)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $libc (instantiate $libc))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core func $poll (canon lower (func $poll "poll")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "host" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "host" "poll" (func $poll (param i32 i32 i32)))
    (func (export "run") (result i32) (local $at i32) (local $made i32) (local $last i32)
      (local.set $at (i32.const 8192))
      (local.set $last (call $subscribe (i64.const 0)))
      (loop
        (if (i32.and (i32.gt_u (local.get $made) (i32.const 0)) (i32.le_u (local.get $made) (i32.const %TIMERS%)))
          (then (local.set $last (call $subscribe (i64.const 3600000000000)))))
        (i32.store (local.get $at) (local.get $last))
        (local.set $at (i32.add (local.get $at) (i32.const 4)))
        (br_if 0 (i32.lt_u (local.tee $made (i32.add (local.get $made) (i32.const 1))) (i32.const %ENTRIES%))))
      (call $poll (i32.const 8192) (i32.const %ENTRIES%) (i32.const 64))
      (i32.const 0)))
  (core instance $main (instantiate $main (with "libc" (instance $libc)) (with "host" (instance
    (export "subscribe" (func $subscribe)) (export "poll" (func $poll))))))
  (func $run (result (result (error string)))
    (canon lift (core func $main "run") (memory (core memory $libc "memory"))))
  (instance $entry (export "run" (func $run)))
  (export "dchost:worker/entry@0.1.0" (instance $entry)))
