"""Targets as transformers computes them, from the same files that the engine reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.kimi_k25 import Kimi_K25ForConditionalGeneration

from tests.fixtures.pair import TargetShape
from tests.fixtures.steps import chain

TOLERANCE = 1e-4  # of logits in fp32; both sides sum in fp32, in different orders
PREFIX = "language_model."
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)  # these products are so small that threads only wait for each other


def kimi(folder: Path) -> Any:
    """The published class on the published layout, packed INT4 included, in fp32."""
    config = AutoConfig.from_pretrained(folder)
    vision = config.vision_config  # unused, and 0.4e9 random parameters unless made small
    vision.num_hidden_layers, vision.hidden_size, vision.intermediate_size, vision.num_attention_heads = 1, 64, 64, 2
    config.projection_hidden_size = 64
    model = Kimi_K25ForConditionalGeneration.from_pretrained(folder, config=config, attn_implementation="eager")
    torch.nn.Module.float(model)  # `model.float()` refuses quantised models, and the experts arrive as BF16
    return model.eval()


def rope_parameters(shape: TargetShape) -> dict[str, Any]:
    """transformers' names of the YAML's rotation rule."""
    rule = shape.rotation
    if rule["kind"] == "plain":
        return {"rope_type": "default", "rope_theta": float(rule["theta"])}
    same = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return {
        "rope_type": "yarn",
        "rope_theta": float(rule["theta"]),
        "original_max_position_embeddings": rule["original"],
        **{name: float(rule[name]) for name in same},
    }


def deepseek_config(shape: TargetShape) -> DeepseekV3Config:
    """Every value set: the library's defaults are those of another model."""
    return DeepseekV3Config(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.dense_width,
        moe_intermediate_size=shape.expert_width, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads, n_shared_experts=shape.shared_experts, n_routed_experts=shape.experts,
        num_experts_per_tok=shape.top_k, n_group=1, topk_group=1, first_k_dense_replace=shape.dense_layers,
        norm_topk_prob=True, routed_scaling_factor=shape.route_scale, q_lora_rank=shape.q_lora,
        kv_lora_rank=shape.kv_lora, qk_nope_head_dim=shape.nope, qk_rope_head_dim=shape.rope, v_head_dim=shape.value,
        hidden_act="silu", max_position_embeddings=shape.context, rms_norm_eps=shape.eps, tie_word_embeddings=False,
        attention_bias=False, num_mtp_layers=0, rope_parameters=rope_parameters(shape),
        rope_interleave=shape.rotation["layout"] == "interleaved", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def plain_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors in fp32 without the prefix; experts unpacked by compressed-tensors and rounded to BF16."""
    stored = {k.removeprefix(PREFIX): v for k, v in load_file(folder / "model.safetensors").items()}
    plain = {}
    for name, tensor in stored.items():
        if name.endswith("_packed"):
            name = name.removesuffix("_packed")
            scale = stored[f"{name}_scale"].float()
            shape = torch.Size(stored[f"{name}_shape"].tolist())
            q = unpack_from_int32(tensor, 4, shape).float().reshape(*scale.shape, -1)
            plain[name] = (q * scale[..., None]).bfloat16().float().reshape(shape)
        elif not name.endswith(("_scale", "_shape")):
            plain[name] = tensor.float()
    return plain


def deepseek(folder: Path, shape: TargetShape, work: Path) -> Any:
    """DeepseekV3ForCausalLM with a random checkpoint's weights; every tensor must have its place. `work` is scratch."""
    deepseek_config(shape).save_pretrained(work)
    save_file(plain_tensors(folder), work / "model.safetensors", metadata={"format": "pt"})
    load: Any = DeepseekV3ForCausalLM.from_pretrained
    model, info = load(work, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for layer in model.model.layers:  # the class builds both inner norms without asking its configuration
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = shape.inner_eps
    return model.eval()


def forward(model: Any, ids: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [tokens, vocab], and the residual stream [tokens, hidden] before layer 0, 1, ...; the last is normed."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
    return out.logits[0].numpy(), [hidden[0].numpy() for hidden in out.hidden_states]


def features(model: Any, ids: Sequence[int], taps: Sequence[int]) -> np.ndarray:
    """Outputs of the tapped layers side by side [tokens, taps * hidden]; the output of layer i is hidden_states[i + 1]."""
    _, hidden = forward(model, ids)
    return np.concatenate([hidden[layer + 1] for layer in taps], axis=1)


def node_logits(model: Any, prefix: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> np.ndarray:
    """Logits of every tree node [nodes, vocab]: each is the last token of its own ancestor chain after `prefix`."""
    paths = [chain(node, parents) for node in range(len(tokens))]
    longest = max(len(path) for path in paths)
    padded = [[*prefix, *(tokens[i] for i in path), *[0] * (longest - len(path))] for path in paths]
    with torch.no_grad():  # attention is causal, so that no row sees the padding after it
        logits = model(input_ids=torch.tensor(padded), use_cache=False).logits.numpy()
    return np.stack([logits[i, len(prefix) + len(path) - 1] for i, path in enumerate(paths)])


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference in units of the reference's root mean square: the residual stream grows with depth."""
    return float(np.abs(ours - theirs).max() / np.sqrt(np.mean(np.square(theirs))))
