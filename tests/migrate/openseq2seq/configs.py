"""Configurations written for these tests, in the style of OpenSeq2Seq."""

from __future__ import annotations

TRANSFORMER = '''
from __future__ import absolute_import
from open_seq2seq.models import Text2Text
from open_seq2seq.encoders import TransformerEncoder
from open_seq2seq.decoders import TransformerDecoder
from open_seq2seq.data.text2text.text2text import ParallelTextDataLayer, SpecialTextTokens
from open_seq2seq.losses import PaddedCrossEntropyLossWithSmoothing
from open_seq2seq.optimizers.lr_policies import transformer_policy
import tensorflow as tf

"""A small Transformer."""

base_model = Text2Text
width = 32
layers = 2
data_root = "{data}/"

base_params = {{
    "use_horovod": True,
    "num_gpus": 1,
    "batch_size_per_gpu": 16,  # in sentence pairs
    "max_steps": 40,
    "save_summaries_steps": 10,
    "print_loss_steps": 5,
    "print_samples_steps": 10,
    "eval_steps": 20,
    "save_checkpoint_steps": 10,
    "num_checkpoints": 3,
    "logdir": "transformer-small",
    "dtype": tf.float32,
    "optimizer": tf.contrib.opt.LazyAdamOptimizer,
    "optimizer_params": {{"beta1": 0.9, "beta2": 0.997, "epsilon": 1e-09}},
    "lr_policy": transformer_policy,
    "lr_policy_params": {{"learning_rate": 2.0, "warmup_steps": 8000 // 100, "d_model": width}},
    "encoder": TransformerEncoder,
    "encoder_params": {{
        "encoder_layers": layers,
        "hidden_size": width,
        "num_heads": 4,
        "attention_dropout": 0.1,
        "filter_size": 4 * width,
        "relu_dropout": 0.2,
        "layer_postprocess_dropout": 0.3,
        "remove_padding": True,
    }},
    "decoder": TransformerDecoder,
    "decoder_params": {{
        "layer_postprocess_dropout": 0.3,
        "num_hidden_layers": layers + 1,
        "hidden_size": width,
        "num_heads": 4,
        "attention_dropout": 0.1,
        "relu_dropout": 0.2,
        "filter_size": 4 * width,
        "beam_size": 5,
        "alpha": 0.6,
        "extra_decode_length": 50,
        "GO_SYMBOL": SpecialTextTokens.S_ID.value,
    }},
    "loss": PaddedCrossEntropyLossWithSmoothing,
    "loss_params": {{"label_smoothing": 0.1}},
}}

train_params = {{
    "data_layer": ParallelTextDataLayer,
    "data_layer_params": {{
        "src_vocab_file": data_root + "common.vocab",
        "tgt_vocab_file": data_root + "common.vocab",
        "source_file": data_root + "train.en.tok",
        "target_file": data_root + "train.de.tok",
        "delimiter": " ",
        "shuffle": True,
        "shuffle_buffer_size": 25000,
        "max_length": 56,
    }},
}}
eval_params = {{
    "batch_size_per_gpu": 4,
    "data_layer": ParallelTextDataLayer,
    "data_layer_params": {{
        "src_vocab_file": data_root + "common.vocab",
        "tgt_vocab_file": data_root + "common.vocab",
        "source_file": data_root + "valid.en.tok",
        "target_file": data_root + "valid.de.tok",
        "delimiter": " ",
        "max_length": 256,
    }},
}}
infer_params = {{
    "data_layer": ParallelTextDataLayer,
    "data_layer_params": {{
        "src_vocab_file": data_root + "common.vocab",
        "tgt_vocab_file": data_root + "common.vocab",
        "source_file": data_root + "test.en.tok",
        "target_file": data_root + "test.en.tok",
    }},
}}
'''

RESNET = """
from open_seq2seq.models import Image2Label
from open_seq2seq.encoders import ResNetEncoder
from open_seq2seq.decoders import FullyConnectedDecoder
from open_seq2seq.losses import CrossEntropyLoss
from open_seq2seq.data import ImagenetDataLayer
from open_seq2seq.optimizers.lr_policies import piecewise_constant
import tensorflow as tf

base_model = Image2Label

base_params = {{
    "random_seed": 0,
    "use_horovod": False,
    "num_epochs": 90,
    "num_gpus": 2,
    "batch_size_per_gpu": 32,
    "dtype": tf.float32,
    "save_summaries_steps": 2000,
    "print_loss_steps": 100,
    "eval_steps": 5000,
    "save_checkpoint_steps": 5000,
    "logdir": "experiments/resnet18",
    "optimizer": "Momentum",
    "optimizer_params": {{"momentum": 0.90}},
    "lr_policy": piecewise_constant,
    "lr_policy_params": {{
        "learning_rate": 0.1,
        "boundaries": [30, 60, 80],
        "decay_rates": [0.1, 0.01, 0.001],
    }},
    "initializer": tf.variance_scaling_initializer,
    "regularizer": tf.contrib.layers.l2_regularizer,
    "regularizer_params": {{"scale": 0.0001}},
    "summaries": ["learning_rate", "gradients"],
    "encoder": ResNetEncoder,
    "encoder_params": {{"resnet_size": 18, "regularize_bn": False}},
    "decoder": FullyConnectedDecoder,
    "decoder_params": {{"output_dim": 1000}},
    "loss": CrossEntropyLoss,
    "data_layer": ImagenetDataLayer,
    "data_layer_params": {{"data_dir": "{data}", "image_size": 64, "num_classes": 1000}},
}}
"""
