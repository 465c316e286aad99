"""The prefix cache as counts of blocks: O(parts of a prompt) for each job, instead of block by block.

A node is a run of whole blocks that some prompts have in common; blocks ``first`` … ``upto`` − 1 are in the cache. A
node is split at a block's edge where prompts part, as ``engine.kv.tree`` splits its edges, so a job uses a node to its
end. The block in which one part of a prompt (a shared piece, or a stream) ends and the next begins belongs to the next
part; a node without blocks represents the end of the earlier part. Blocks that running jobs matched are not evicted.
Idle nodes are evicted in order of their last use, the end of a prompt before its start, last blocks first.

Laws:
    1. held + idle + free = all; ``held`` counts blocks of nodes in use and the jobs' own blocks.
    2. A job that uses a node uses its parent.
    3. A job's own blocks follow those that it published."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeAlias

from twofold.planner.simulate.jobs import SimulatedJob, spans

Name: TypeAlias = "int | tuple[int]"
Key: TypeAlias = "tuple[int, Name, int]"
"""Start of a node, name of its part, and its end if it has no whole block, else 0."""


class PrefixNode:
    """Tokens up to ``end`` that prompts have in common; its blocks start at ``first``.

    ``users``: number of running jobs that use it; ``latest``: the child created last.
    """

    __slots__ = ("children", "end", "first", "key", "latest", "parent", "upto", "users")

    def __init__(self, parent: PrefixNode | None, key: Key, end: int, first: int) -> None:
        self.parent, self.key, self.end = parent, key, end
        self.first = self.upto = first
        self.users = 0
        self.children: dict[Key, PrefixNode] = {}
        self.latest: PrefixNode | None = None

    @property
    def blocks(self) -> int:
        return self.upto - self.first

    def has(self, block: int) -> bool:
        """Whether that block of this node, or of a node that continues it, is in the cache."""
        node: PrefixNode | None = self
        while node is not None and node.upto <= block:
            node = node.latest
        return node is not None


class JobBlocks:
    """Blocks of a running job: the first ``published`` belong to the nodes of its ``path``, ``own`` more to it alone.

    The first ``at`` nodes of the path are complete.
    """

    __slots__ = ("at", "own", "path", "published")

    def __init__(self, path: list[PrefixNode], published: int) -> None:
        self.path = path
        self.published = published
        self.own = 0
        self.at = 0

    @property
    def blocks(self) -> int:
        return self.published + self.own


class CountedCache:
    """A cache of ``blocks`` blocks of ``block_size`` positions; ``enabled``: whether blocks stay for later jobs."""

    def __init__(self, blocks: int, block_size: int, *, enabled: bool = True) -> None:
        self.total, self.block_size = blocks, block_size
        self.held = 0
        self._idle = 0
        self._enabled = enabled
        self._root = PrefixNode(None, (0, 0, 0), 0, 0)
        self._lru: OrderedDict[PrefixNode, None] = OrderedDict()
        self._running: set[JobBlocks] = set()

    @property
    def obtainable(self) -> int:
        """Blocks that are free or can be evicted."""
        return self.total - self.held

    def find(self, job: SimulatedJob, limit: int) -> tuple[int, int]:
        """How many of the job's first ``limit`` tokens are cached, and how many blocks of these are idle."""
        if not self._enabled:
            return 0, 0
        return self._walk(job, limit)

    def open(self, job: SimulatedJob, limit: int, *, shares: bool = True) -> tuple[JobBlocks, int]:
        """Shares the cached part of a job's first ``limit`` tokens. Returns its blocks, and how many tokens are cached.

        Without ``shares`` the cache is not searched, and all blocks of the job are its own.
        """
        if not (self._enabled and shares):
            return JobBlocks([], 0), 0
        found, _ = self._walk(job, limit)
        job_blocks = JobBlocks([], found // self.block_size)
        self._use(job_blocks, job)
        return job_blocks, found

    def take(self, job_blocks: JobBlocks, count: int) -> None:
        """Takes ``count`` more blocks for a job; the caller has checked that they are obtainable."""
        job_blocks.own += count
        self.take_many(count)

    def take_many(self, count: int) -> None:
        """Takes ``count`` blocks for several jobs, which are assigned to them later."""
        self.held += count
        lacking = self.held + self._idle - self.total
        if lacking > 0:
            self._evict(lacking)

    def publish(self, job_blocks: JobBlocks, computed: int) -> None:
        """Publishes the whole blocks of a job's first ``computed`` tokens; shares those that other jobs published."""
        while job_blocks.at < len(job_blocks.path):
            node = job_blocks.path[job_blocks.at]
            reach = min(node.end, computed) // self.block_size
            fresh = reach - max(job_blocks.published, node.upto)
            if fresh > 0:
                node.upto = reach
                job_blocks.own -= fresh
            double = min(reach, node.upto - max(fresh, 0)) - job_blocks.published
            if double > 0:
                job_blocks.own -= double
                self.held -= double
            job_blocks.published = max(job_blocks.published, reach)
            if computed < node.end:
                return
            job_blocks.at += 1

    def close(self, job_blocks: JobBlocks, computed: int, returning: SimulatedJob | None = None) -> None:
        """Publishes a job's computed tokens and releases its blocks. A ``returning`` job finds them later."""
        if returning is not None and self._enabled and not job_blocks.path:
            self._use(job_blocks, returning)
        self.publish(job_blocks, computed)
        self.held -= job_blocks.own
        job_blocks.own = 0
        self._running.discard(job_blocks)
        for node in reversed(job_blocks.path):
            node.users -= 1
            if not node.users:
                self._release(node)

    def fill(self, job_blocks: JobBlocks, job: SimulatedJob) -> None:
        """Publishes and releases the blocks of a job whose whole prompt was loaded; ``job_blocks`` were opened for its
        part that was cached before, and have taken the others."""
        whole = JobBlocks([], job_blocks.published)
        whole.own, job_blocks.own = job_blocks.own, 0
        self._use(whole, job)
        self.close(job_blocks, job_blocks.published * self.block_size)
        self.close(whole, job.prompt)

    def reclaim(self) -> bool:
        """Evicts blocks of nodes in use beyond the part that their only job matched. Returns whether there were any.

        The job computes these tokens itself, as the last one of a prompt that is cached whole.
        """
        held = self.held
        for job_blocks in self._running:
            for node in job_blocks.path[job_blocks.at :]:
                unmatched = node.upto - max(node.first, job_blocks.published)
                if node.users == 1 and unmatched > 0:
                    node.upto -= unmatched
                    self.held -= unmatched
        return self.held < held

    def check(self) -> None:
        """Asserts law 1 for a cache without running jobs."""
        assert self.held == 0, f"{self.held} blocks leaked"
        assert self._idle == sum(node.blocks for node in self._lru) <= self.total, "idle blocks are counted wrongly"

    def _walk(self, job: SimulatedJob, limit: int) -> tuple[int, int]:
        """``find`` in an enabled cache. ``edge`` is the position reached, ``whole`` the cached blocks up to there."""
        size, node, whole, edge, idle = self.block_size, self._root, 0, 0, 0
        found = 0
        for key, end in self._node_keys(job):
            reach = min(end, limit)
            if node.end > edge:
                found = reach if key[1] == node.key[1] and node.upto > whole else 0
                break
            while edge < reach:
                child = node.children.get((edge, *key[1:]))
                if not edge % size and (child is None or key[2]):
                    found = self._match_inside_block(node, key[1], edge, reach)
                if child is None:
                    break
                node, edge = child, min(child.end, reach)
                whole = min(child.upto, edge // size)
                if not child.users:
                    idle += max(0, whole - child.first)
                if whole < edge // size:
                    return whole * size, idle
            if edge < end:
                break
        if node.has(edge // size):
            found = max(found, edge)
        return max(found, whole * size), idle

    def _match_inside_block(self, node: PrefixNode, name: Name, edge: int, limit: int) -> int:
        """The end of the longest match in the block after ``edge``, up to ``limit``: other prompts continue there with
        the same part and end it inside the block, which can be copied."""
        found = 0
        for key in ((edge, name, 0), *((edge, name, edge + more) for more in range(1, self.block_size))):
            child = node.children.get(key)
            if child is not None and child.has(edge // self.block_size):
                found = max(found, min(key[2] or limit, limit))
        return found

    def _node_keys(self, job: SimulatedJob) -> Iterator[tuple[Key, int]]:
        """Keys and ends of a prompt's nodes: for each part its whole blocks, then the rest."""
        size = self.block_size
        for name, start, end in spans(job):
            whole = end - end % size
            if whole > start:
                yield (start, name, 0), whole
            if whole < end:
                yield (max(start, whole), name, end), end

    def _use(self, job_blocks: JobBlocks, job: SimulatedJob) -> None:
        """Adds all nodes of a job to its path; creates missing ones, and splits a node that reaches beyond a part."""
        node, at = self._root, 0
        for key, end in self._node_keys(job):
            while at < end:
                child = node.children.get((at, *key[1:]))
                if child is None:
                    child = self._attach(node, (at, *key[1:]), end)
                elif child.end > end:
                    child = self._cut(child, end)
                child.users += 1
                if child in self._lru:
                    del self._lru[child]
                    self._idle -= child.blocks
                    self.held += child.blocks
                job_blocks.path.append(child)
                node, at = child, child.end
        self._running.add(job_blocks)

    def _attach(self, parent: PrefixNode, key: Key, end: int) -> PrefixNode:
        node = PrefixNode(parent, key, end, key[0] // self.block_size)
        parent.children[key] = parent.latest = node
        return node

    def _cut(self, node: PrefixNode, end: int) -> PrefixNode:
        """Splits a node at ``end``, a block's edge. Returns a new node for the first part; the node keeps the rest."""
        parent, edge = node.parent, end // self.block_size
        assert parent is not None, "the root has no tokens"
        head = PrefixNode(parent, node.key, end, node.first)
        head.upto, head.users, head.latest = min(node.upto, edge), node.users, node
        parent.children[node.key] = head
        if parent.latest is node:
            parent.latest = head
        node.parent, node.key, node.first, node.upto = head, (end, *node.key[1:]), edge, max(node.upto, edge)
        head.children[node.key] = node
        if node.users:
            self._insert_in_paths(head, node)
        elif head.blocks:
            self._lru[head] = None
            if not node.blocks:
                del self._lru[node]
                self._detach(node)
        return head

    def _insert_in_paths(self, head: PrefixNode, node: PrefixNode) -> None:
        """Adds the first part of a split node to the paths of the running jobs that use it."""
        for job_blocks in self._running:
            if node in job_blocks.path:
                at = job_blocks.path.index(node)
                job_blocks.path.insert(at, head)
                job_blocks.at += job_blocks.at > at

    def _release(self, node: PrefixNode) -> None:
        """Makes the blocks of a node without users idle."""
        count = node.blocks
        if count > 0:
            self.held -= count
            self._idle += count
            self._lru[node] = None
        else:
            self._detach(node)

    def _evict(self, count: int) -> None:
        """Evicts the ``count`` least recently used idle blocks."""
        while count > 0:
            node = next(iter(self._lru))
            gone = min(count, node.blocks)
            node.upto -= gone
            self._idle -= gone
            count -= gone
            if not node.blocks:
                del self._lru[node]
                self._detach(node)

    def _detach(self, node: PrefixNode) -> None:
        """Removes a node if it has no users, children and blocks; then likewise its parents."""
        while node.parent is not None and not (node.users or node.children or node.blocks):
            parent = node.parent
            del parent.children[node.key]
            if parent.latest is node:
                parent.latest = next(reversed(parent.children.values()), None)
            node = parent
