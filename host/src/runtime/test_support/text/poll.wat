(import "wasi:io/poll@0.2.0" (instance $poll
  (export "pollable" (type $pollable (sub resource)))
  (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
(alias export $poll "pollable" (type $pollable))
