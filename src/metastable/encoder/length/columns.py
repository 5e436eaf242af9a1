"""What the columns of the tables of a study of lengths mean. NAME_low and NAME_high are ends of a 95 % interval."""

from __future__ import annotations

N = "the length of the texts in tokens"
SOURCE = "`prefix`: beginnings of documents; `glued`: texts glued together, where documents are too short"
LAYER = "the attention layer, counted from 0"
HEAD = "the head in its layer, counted from 0"
MADE_FROM = "the length in tokens that the forecast was made from"
STATISTIC = "entropy, log_participation, top_weight or special_share"

MEANINGS: dict[str, dict[str, str]] = {
    "heads": {
        "n": N,
        "source": SOURCE,
        "layer": LAYER,
        "head": HEAD,
        "entropy": "entropy of the attention weights of a query, in nats, mean over queries",
        "log_participation": "log of 1/Σa², the effective number of tokens that a query with weights a attends to",
        "top_weight": "largest attention weight of a query",
        "special_share": "weight on special tokens such as [CLS] and [SEP]",
        "score_spread": "standard deviation of the scores of a query",
        "score_gap": "highest score of a query less the log of the mean of e^score over far tokens",
        "participation": "exp of log_participation",
        "focus": "whether the head has focus: top_weight at least 0.25 and participation at most n/2",
    },
    "focus": {
        "layer": LAYER,
        "head": HEAD,
        "focus_at_start": "whether the head has focus at n₀ tokens",
        "loses_focus_at": "the first measured length at which it has none; NaN if there is none",
        "forecast_to_lose_at": "the same, as forecast from n₀ tokens",
        "forecast_to_lose_later": "the same for longer texts, as forecast from the last measured length",
        "score_gap": "score gap at n₀ tokens",
        "gap_growth": "slope of the score gap in log n; a head keeps its focus at all lengths if it is about 1 or more",
        "entropy_more_tokens": "part of the change of the entropy: every token counts as often as the text is longer",
        "entropy_near_tokens": "part: a token has no more neighbours in a long text than in a short one",
        "entropy_special_tokens": "part: there are no more special tokens in a long text, so they lose weight",
        "entropy_positions": "part: tokens have later positions",
        "entropy_other_scores": "part: tokens have other scores, because they have other contexts",
    },
    "depths": {
        "n": N,
        "source": SOURCE,
        "depth": "the input of this layer, counted from 0; the last depth is the output of the encoder",
        "phase": "the phase of the tokens, as in an audit",
        "mean_cosine": "mean cosine between two tokens of a text, without gains and offsets of the norms",
        "mean_square_cosine": "mean squared cosine between two tokens of a text",
        "effective_rank": "effective number of directions of up to 64 tokens of a text",
        "hidden_cosine": "mean cosine between two returned hidden states of a text",
    },
    "documents": {
        "n": N,
        "document_cosine": "mean cosine between the embeddings of two documents",
        "agreement": "cosine of a document's embedding with the mean of the embeddings of its pieces of n₀ tokens",
    },
    "forecasts": {
        "made_from": MADE_FROM,
        "n": "the length in tokens that is forecast",
        "layer": LAYER,
        "head": HEAD,
        "statistic": STATISTIC,
        "forecast": "the forecast value",
        "low": "lower end of its 90 % error bar",
        "high": "upper end of its 90 % error bar",
        "measured": "the value measured later; NaN if that length was not measured",
    },
    "skill": {
        "made_from": MADE_FROM,
        "n": "the length in tokens that is forecast",
        "statistic": STATISTIC,
        "method": "`forecast`, or a simple rule that it is compared with",
        "error": "mean absolute error of the method over heads",
        "skill": "1 − error of the forecast/error of the method: 0 or less if the method is as good",
    },
    "causes": {
        "quantity": "`document_cosine` or `entropy`: what changes between n₀ and n tokens",
        "n": N,
        "part": "the cause: averaging, positions or attention; of the entropy as in focus.csv",
        "change": "the part of the change that it has",
    },
    "retrieval": {
        "n": N,
        "way": "how a document is represented: whole, in chunks (mean or maximum), or whole with factors on scores",
        "chunk": "the length of a chunk in tokens; NaN for whole documents",
        "queries": "the number of queries",
        "mrr": "mean reciprocal rank of the right document",
        "recall_1": "share of queries whose document is the first one",
        "recall_5": "share of queries whose document is among the first five",
        "recall_10": "share of queries whose document is among the first ten",
        "against": "the length of whole documents that the gain is measured against",
        "mrr_gain": "difference in mrr to these, paired by query; its intervals hold for all compared ways at once",
    },
}
"""By table and column."""
