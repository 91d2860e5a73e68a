;; The address of the first failed result; 0: there is none.
(global $failed (mut i32) (i32.const 0))
(func $check (param $at i32)
  (if (i32.and (i32.load8_u (local.get $at)) (i32.eqz (global.get $failed)))
    (then (global.set $failed (local.get $at)))))
;; What `run` returns: ok, or the message of the first failed result.
(func $outcome (result i32)
  (if (i32.eqz (global.get $failed)) (then (return (i32.const 0))))
  (i32.store8 (i32.const 16) (i32.const 1))
  (i32.store (i32.const 20) (i32.load offset=8 (global.get $failed)))
  (i32.store (i32.const 24) (i32.load offset=12 (global.get $failed)))
  (i32.const 16))
