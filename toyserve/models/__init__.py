"""The model and its tensors: GPT-2, attention, the KV pool, weights, tokenizer and sampler."""
