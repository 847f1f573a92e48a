"""Exported models: safetensors, CTranslate2, ONNX and edge bundles, each compared with PyTorch when written."""
