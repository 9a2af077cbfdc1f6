"""Attend: a weighted mean of values, weighted by how well their keys answer a query.

`attend` is the one that networks use, on heads that are split already. `MultiHeadAttention` is the
whole block with everything open: which score compares a query with a key (`attention_scores`),
which keys a query may see (`attention_scopes`), and whether the answer is the mean or one draw.

Source: Vaswani et al., Attention Is All You Need, NeurIPS 2017.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute full scaled-dot attention with the fastest kernel that there is.

    Args:
        query: (B, heads, M, C).
        key: (B, heads, N, C).
        value: (B, heads, N, D).
        mask: (B, N), True at keys that may be seen, or (B, M, N) for each query its own; None for
            all.

    Returns:
        (B, heads, M, D) in the values' type; 0 for a query that may see no key. A value that no
        query may see does not matter, even if NaN.
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    if mask.ndim == 2:
        hidden = ~mask[:, None, :, None]  # (B, 1, N, 1)
        key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
        mask = mask[:, None]
    message = F.scaled_dot_product_attention(query, key, value, mask[:, None])
    return message.masked_fill(~mask.any(-1)[:, None, :, None], 0)
