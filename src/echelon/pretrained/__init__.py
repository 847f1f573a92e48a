"""Weights from elsewhere: models of Hugging Face, timm and torchvision become runs, and translators go back."""
