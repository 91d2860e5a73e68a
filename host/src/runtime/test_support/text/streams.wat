(import "wasi:io/error@0.2.0" (instance $io-error (export "error" (type (sub resource)))))
(alias export $io-error "error" (type $io-error))
(import "wasi:io/streams@0.2.0" (instance $streams
  (export "output-stream" (type $out (sub resource)))
  (alias outer 1 $io-error (type $e))
  (export "error" (type $error (eq $e)))
  (type $failure' (variant (case "last-operation-failed" (own $error)) (case "closed")))
  (export "stream-error" (type $failure (eq $failure')))
  (export "[method]output-stream.write"
    (func (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $failure)))))
  (export "[method]output-stream.blocking-write-and-flush"
    (func (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $failure)))))))
(alias export $streams "output-stream" (type $out))
