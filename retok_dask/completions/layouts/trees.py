"""Message trees: a prompt with replies, each with replies of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retok_dask.completions.layouts.chats import conversation
from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from retok_dask.recipe import DatasetSpec
    from retok_dask.types import Item

MOST_MESSAGES = 100_000
"""More messages than this in one tree are no tree of people's messages."""


def _root(record: dict[str, Any]) -> dict[str, Any] | None:
    prompt = record.get("prompt")
    root = prompt if isinstance(prompt, dict) else record
    return root if isinstance(root.get("replies"), list) else None


def fits_tree(record: dict[str, Any]) -> bool:
    """A message with ``replies``, or one under ``prompt``."""
    root = _root(record)
    return root is not None and "role" in root


def build_tree(record: dict[str, Any], spec: DatasetSpec) -> list[Item]:
    """Paths through a tree as conversations.

    ``prefer: chosen`` follows the best-ranked reply at each step (the first
    one where none is ranked), ``rejected`` the worst-ranked, ``both`` gives
    every path to a leaf, best first, and trains each message once: in the
    first path that holds it.
    """
    root = _root(record)
    if root is None:
        raise RecordRejected(RejectReason.bad_layout, "no message with replies")
    if spec.prefer != "both":
        return [conversation(_one_path(root, best=spec.prefer == "chosen"), {}, spec)]
    items: list[Item] = []
    seen: set[int] = set()
    for path in _all_paths(root):
        item = conversation([_message(node) for node in path], {}, spec)
        if any(id(node) in seen for node in path):
            item.flags = [False if id(node) in seen else None for node in path]
        if spec.mode != "prompts" and not any(
            message["role"] == "assistant" and id(node) not in seen
            for message, node in zip(item.messages, path, strict=True)
        ):
            continue
        seen.update(id(node) for node in path)
        items.append(item)
    if not items:
        raise RecordRejected(RejectReason.no_assistant, "no path of the tree holds an assistant message")
    return items


def _message(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise RecordRejected(RejectReason.bad_layout, "a reply is no object")
    content = node.get("text") if "text" in node else node.get("content")
    return {"role": node.get("role"), "content": content}


def _replies(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Replies of a message, best first, deleted ones left out."""
    replies = node.get("replies") or []
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise RecordRejected(RejectReason.bad_layout, "replies are no list of objects")
    kept = [reply for reply in replies if not reply.get("deleted")]
    return sorted(kept, key=lambda reply: rank if isinstance(rank := reply.get("rank"), int | float) else float("inf"))


def _one_path(root: dict[str, Any], *, best: bool) -> list[dict[str, Any]]:
    path, node = [_message(root)], root
    while replies := _replies(node):
        ranked = [reply for reply in replies if reply.get("rank") is not None]
        node = replies[0] if best else (ranked or replies)[-1]
        path.append(_message(node))
        if len(path) > MOST_MESSAGES:
            raise RecordRejected(RejectReason.bad_layout, f"more than {MOST_MESSAGES} messages in a row")
    return path


def _all_paths(root: dict[str, Any]) -> list[list[dict[str, Any]]]:
    paths: list[list[dict[str, Any]]] = []
    todo = [[root]]
    visited = 0
    while todo:
        path = todo.pop()
        visited += len(path)
        if visited > MOST_MESSAGES:
            raise RecordRejected(RejectReason.bad_layout, f"a tree of more than {MOST_MESSAGES} messages")
        replies = _replies(path[-1])
        if replies:
            todo += [[*path, reply] for reply in reversed(replies)]
        else:
            paths.append(path)
    return paths
