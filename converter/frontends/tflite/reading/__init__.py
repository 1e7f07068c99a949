"""Reading of TFLite files: tables, sizes, sparse and quantized tensors, none of it believed before it is checked."""
