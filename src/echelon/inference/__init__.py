"""A trained model at work: what `from echelon import Translator` gives. Torch is loaded only if it is the engine."""
