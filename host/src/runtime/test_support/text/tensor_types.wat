(type $dtype' (enum "f32" "f64" "s32" "s64" "u8" "bf16" "f16" "bool"))
(export "dtype" (type $dtype (eq $dtype')))
(type $tensor' (record (field "dtype" $dtype) (field "shape" (list u64)) (field "data" (list u8))))
(export "tensor" (type $tensor (eq $tensor')))
