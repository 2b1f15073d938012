"""Connectionist temporal classification (Graves et al. 2006): the loss of a labelling, its gradient, and beams of the
likeliest labellings. A unit of each range is a row of the batch; sums of probabilities are float64 logarithms."""
from __future__ import annotations

import math

import numpy as np

from .machine.leaf import generic
from .machine.status import LABEL_OUT_OF_RANGE

NONE = -1e300
"""The logarithm of no probability: finite, so that differences of two are numbers."""


def joined(a, b):                                       # type: ignore[no-untyped-def]
    """log(e^a + e^b)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low <= NONE else high + math.log1p(math.exp(low - high))


def floored(a):                                         # type: ignore[no-untyped-def]
    """The logarithm, or NONE where it is less; NaN stays."""
    return NONE if a < NONE else a


def likely(p):                                          # type: ignore[no-untyped-def]
    """A log-probability by which beams can be ordered: NaN is none, and infinity a large number."""
    return min(p, 1e200) if p > NONE else NONE


def label(targets, blank, s):                           # type: ignore[no-untyped-def]
    """The class of state s: blanks around the labels."""
    return targets[s // 2] if s % 2 else blank


def skips(targets, blank, s):                           # type: ignore[no-untyped-def]
    """State s may follow the one before the blank in front of it: another label."""
    return s >= 2 and s % 2 == 1 and targets[s // 2] != targets[s // 2 - 1]


def forward(probs, n, targets, blank, steps, states, alpha):  # type: ignore[no-untyped-def]
    """alpha[t, s]: the log probability of all ways that are in state s at step t. Returns that of the labelling."""
    for t in range(steps):
        for s in range(states):
            best = NONE
            if t == 0:
                best = 0.0 if s < 2 else NONE
            else:
                best = alpha[t - 1, s]
                if s >= 1:
                    best = joined(best, alpha[t - 1, s - 1])
                if skips(targets, blank, s):
                    best = joined(best, alpha[t - 1, s - 2])
            alpha[t, s] = NONE if best <= NONE else floored(best + probs[t, n, label(targets, blank, s)])
    if steps == 0:
        return 0.0 if states == 1 else NONE
    total = alpha[steps - 1, states - 1]
    return joined(total, alpha[steps - 1, states - 2]) if states >= 2 else total


def fits(probs, row, count, steps):                     # type: ignore[no-untyped-def]
    """Lengths are within their arrays, and labels are classes."""
    inside = 0 <= count <= row.shape[0] and 0 <= steps <= probs.shape[0]
    for k in range(count if inside else 0):
        inside = inside and 0 <= row[k] < probs.shape[2]
    return inside


@generic("T[:,:,:], i8[r,:], i8[r], i8[r], i8, i8, T[r], f8[w,:,:], lo", checked=True)
def ctc_loss(probs, targets, steps, lengths, blank, infinite, loss, alpha, lo):  # type: ignore[no-untyped-def]
    """-log p(targets) of each row; infinity where no way gives them (0 where `infinite` is 0)."""
    status = 0
    for r in range(loss.shape[0]):
        count = lengths[r]
        if not fits(probs, targets[r], count, steps[r]):
            status = LABEL_OUT_OF_RANGE
            continue
        total = forward(probs, lo + r, targets[r], blank, steps[r], 2 * count + 1, alpha)
        loss[r] = (np.inf if infinite else 0.0) if total <= NONE else -total
    return status


@generic("T[:,:,:], i8[r,:], i8[r], i8[r], i8, i8, T[r], T[r,:,:], f8[w,:,:], f8[w,:,:], lo",
         checked=True)
def ctc_gradient(probs, targets, steps, lengths, blank, infinite, upper,  # type: ignore[no-untyped-def]
                 gradient, alpha, beta, lo):
    """-upper[r] times the share of the ways that pass each class at each step: gradient[r, t, c]."""
    status = 0
    for r in range(upper.shape[0]):
        count, most, row = lengths[r], steps[r], targets[r]
        if not fits(probs, row, count, most):
            status = LABEL_OUT_OF_RANGE
            continue
        states = 2 * count + 1
        for t in range(gradient.shape[1]):
            for c in range(gradient.shape[2]):
                gradient[r, t, c] = 0
        total = forward(probs, lo + r, row, blank, most, states, alpha)
        if total <= NONE or most == 0:
            for t in range(most if infinite else 0):
                for c in range(gradient.shape[2]):
                    gradient[r, t, c] = np.nan
            continue
        for back in range(most):
            t = most - 1 - back
            for s in range(states):
                best = NONE
                if back == 0:
                    best = 0.0 if s >= states - 2 else NONE
                else:
                    best = beta[t + 1, s]
                    if s + 1 < states:
                        best = joined(best, beta[t + 1, s + 1])
                    if s + 2 < states and skips(row, blank, s + 2):
                        best = joined(best, beta[t + 1, s + 2])
                share = NONE
                if not (best <= NONE or alpha[t, s] <= NONE):
                    share = best + alpha[t, s] - total
                at = label(row, blank, s)
                if not share <= NONE:
                    gradient[r, t, at] -= upper[r] * np.exp(share)
                beta[t, s] = NONE if best <= NONE else floored(best + probs[t, lo + r, at])
    return status


@generic("T[:,:,:], i8[r], i8, i8, T[r,:], i8[r,:], i8[r,:,:], f8[w,:,:], i8[w,:,:], i8[w,:,:], lo")
def ctc_beams(probs, steps, blank, width, logs, counts, paths,  # type: ignore[no-untyped-def]
              scores, tree, places, lo):
    """The likeliest labellings of each row that a beam search of prefixes keeps (Graves 2012, Hannun et al. 2014): each
    prefix with its probabilities of having ended in a blank and otherwise, the `width` likeliest after each step.

    scores [5, candidates]: of each beam, ending in a blank and otherwise; of each candidate these, and both together.
    tree [5, nodes]: of each prefix its parent, last class, first child, next sibling, and place among the beams.
    places [5, candidates]: a beam's prefix; a candidate's prefix, if it is known, parent and class; children by class.
    """
    blanks, others, nblanks, nothers, total = scores[0], scores[1], scores[2], scores[3], scores[4]
    parent, letter, child, sibling, slot = tree[0], tree[1], tree[2], tree[3], tree[4]
    beam, known, under, added, children = places[0], places[1], places[2], places[3], places[4]
    classes = probs.shape[2]
    for r in range(steps.shape[0]):
        nodes, beams = 1, 1
        parent[0], letter[0], child[0], sibling[0], slot[0], beam[0] = -1, -1, -1, -1, 0, 0
        blanks[0], others[0] = 0.0, NONE
        for t in range(min(max(steps[r], 0), probs.shape[0])):
            for i in range(beams):                      # the prefix itself: a blank, or its last class once more
                last = letter[beam[i]]
                nblanks[i] = floored(joined(blanks[i], others[i]) + likely(probs[t, lo + r, blank]))
                nothers[i] = NONE if last < 0 else floored(others[i] + likely(probs[t, lo + r, last]))
                known[i] = beam[i]
            found = beams
            for i in range(beams):
                both, node = joined(blanks[i], others[i]), beam[i]
                for c in range(classes):
                    children[c] = -1
                below = child[node]
                while below >= 0:
                    children[letter[below]] = below
                    below = sibling[below]
                for c in range(classes):
                    if c == blank:
                        continue
                    score = floored((blanks[i] if c == letter[node] else both) + likely(probs[t, lo + r, c]))
                    below = children[c]
                    if below >= 0 and slot[below] >= 0:  # another beam, which this one becomes
                        nothers[slot[below]] = joined(nothers[slot[below]], score)
                    else:
                        nblanks[found], nothers[found] = NONE, score
                        known[found], under[found], added[found] = below, node, c
                        found += 1
            for k in range(found):
                total[k] = joined(nblanks[k], nothers[k])
            for i in range(beams):
                slot[beam[i]] = -1
            beams = min(width, found)
            for place in range(beams):                  # the likeliest first; of equals the one found first
                best = -1
                for k in range(found):
                    if total[k] > 2 * NONE and (best < 0 or total[k] > total[best]):
                        best = k
                blanks[place], others[place], total[best] = nblanks[best], nothers[best], 4 * NONE
                node = known[best]
                if node < 0:
                    node = nodes
                    parent[node], letter[node], child[node], slot[node] = under[best], added[best], -1, -1
                    sibling[node] = child[under[best]]
                    child[under[best]] = node
                    nodes += 1
                children[place] = node
            for place in range(beams):
                beam[place] = children[place]
                slot[beam[place]] = place
        for p in range(logs.shape[1]):
            for t in range(paths.shape[2]):
                paths[r, p, t] = 0
            counts[r, p], logs[r, p] = 0, -np.inf
            if p < beams:
                both = joined(blanks[p], others[p])
                logs[r, p] = both if both > NONE else -np.inf
                node, length = beam[p], 0
                while parent[node] >= 0:
                    length += 1
                    node = parent[node]
                counts[r, p], node = length, beam[p]
                for k in range(length):
                    paths[r, p, length - 1 - k] = letter[node]
                    node = parent[node]
