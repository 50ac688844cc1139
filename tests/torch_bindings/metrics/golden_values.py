#!/usr/bin/env python3
"""What scikit-learn says of the samples of metrics_test.cc, as C++ for that file.

usage: golden_values.py    needs scikit-learn (1.9.1 gave what stands in the test)
"""

import numpy
from sklearn import metrics

SAMPLES, CLASSES = 50, 4
I = numpy.arange(SAMPLES)
SCORES = numpy.array([[(i * 37 + c * c * 11 + i * c * 7) % 29 / 29 for c in range(CLASSES)]
                      for i in range(SAMPLES)], dtype=numpy.float32)
TARGETS = numpy.array([(i * 13 + i // 3) % 7 % (CLASSES - 1) for i in range(SAMPLES)])
BINARY_SCORES = (I * 37 % 17 / 17).astype(numpy.float32)
BINARY_TARGETS = ((I * I * 5 + I) % 7 < 3).astype(int)
LOGITS = numpy.array([[(i * 37 + c * 11 + i * c * 7) % 23 / 4 for c in range(CLASSES)]
                      for i in range(SAMPLES)])


def show(name, value):
    values = numpy.atleast_1d(value).ravel()
    text = ", ".join(f"{float(v)!r}" for v in values)
    print(f"constexpr double {name} = {text};" if values.size == 1
          else f"constexpr std::array<double, {values.size}> {name} = {{{text}}};")


def main():
    guesses = SCORES.argmax(1)
    binary_guesses = (BINARY_SCORES > 0.5).astype(int)
    show("kAccuracy", metrics.accuracy_score(TARGETS, guesses))
    # Of equal scores the first counts, so the second best is found by a stable sort.
    order = numpy.argsort(-SCORES, axis=1, kind="stable")[:, :2]
    show("kTopTwo", (order == TARGETS[:, None]).any(1).mean())
    scores = {"Precision": metrics.precision_score, "Recall": metrics.recall_score,
              "F1": metrics.f1_score}
    for name, score in scores.items():
        show(f"k{name}Binary", score(BINARY_TARGETS, binary_guesses))
        for average in ("micro", "macro", "weighted"):
            show(f"k{name}{average.title()}",
                 score(TARGETS, guesses, average=average, zero_division=0))
        show(f"k{name}PerClass", score(TARGETS, guesses, labels=range(CLASSES), average=None,
                                       zero_division=0))
    show("kFTwoMacro", metrics.fbeta_score(TARGETS, guesses, beta=2, average="macro",
                                           zero_division=0))
    show("kConfusion", metrics.confusion_matrix(TARGETS, guesses, labels=range(CLASSES)))
    show("kConfusionByTarget", metrics.confusion_matrix(TARGETS, guesses, labels=range(CLASSES),
                                                        normalize="true"))
    show("kAuroc", metrics.roc_auc_score(BINARY_TARGETS, BINARY_SCORES))
    show("kAurocPerClass", [metrics.roc_auc_score(TARGETS == c, SCORES[:, c])
                            for c in range(CLASSES - 1)])
    show("kSquaredError", metrics.mean_squared_error(BINARY_TARGETS,
                                                     BINARY_SCORES.astype(float)))
    show("kAbsoluteError", metrics.mean_absolute_error(BINARY_TARGETS,
                                                       BINARY_SCORES.astype(float)))
    odds = numpy.exp(LOGITS)
    likelihoods = (odds / odds.sum(1, keepdims=True))
    show("kPerplexity", numpy.exp(metrics.log_loss(TARGETS, likelihoods, labels=range(CLASSES))))


if __name__ == "__main__":
    main()
