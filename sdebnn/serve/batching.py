"""Forecasts of concurrent requests, in few calls of the model.

While the model is busy, the rows that arrive wait in a queue. Then all that wait, up to a limit, are forecast in one
call. No request waits for others to arrive. The model runs in one thread, so that the event loop can answer meanwhile.
"""

import asyncio
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sdebnn.columns import Columns
from sdebnn.data import UnlikeTrainingWarning
from sdebnn.forecasters import Forecaster
from sdebnn.serve.examples import example_of

GROWTH = 4  # of the sizes to which batches are padded: each size is a program, which takes seconds to compile


class Answer(NamedTuple):
    """The forecasts of some rows, and what the forecaster warned of."""

    columns: Columns
    warnings: list[str]


class Part(NamedTuple):
    """Rows of one request, which are forecast together."""

    rows: list[Any]
    coverage: float
    answer: "asyncio.Future[Answer]"


def batch_sizes(most: int) -> list[int]:
    """The numbers of rows to which batches are padded: 1, 4, 16, ... and the largest."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(min(GROWTH * sizes[-1], most))
    return sizes


class Batcher:
    """A forecaster in a thread, and the rows that wait for it."""

    def __init__(self, forecaster: Forecaster, most_rows: int):
        self.forecaster, self.sizes, self.is_warm = forecaster, batch_sizes(most_rows), False
        self.example = example_of(forecaster.contract)
        self._waiting: deque[Part] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "forecasts")

    def warm_up(self) -> None:
        """Forecast a batch of each size once, so that its program is compiled before the first request."""
        if self.example is not None:
            for size in self.sizes:
                self._forecast([self.example] * size, 0.95)
        self.is_warm = True

    async def run(self) -> None:
        """Answer what waits, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            answers = await loop.run_in_executor(self._thread, self._answers, batch)
            for part, answer in zip(batch, answers, strict=True):
                if part.answer.done():  # its request was cancelled
                    continue
                if isinstance(answer, Answer):
                    part.answer.set_result(answer)
                else:
                    part.answer.set_exception(answer)

    def close(self) -> None:
        """End the thread, after the forecast in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def forecast(self, rows: list[Any], coverage: float) -> list[Answer]:
        """The forecasts of the rows of one request, which must be valid, in parts of at most the largest batch."""
        loop, most = asyncio.get_running_loop(), self.sizes[-1]
        parts = [Part(rows[i : i + most], coverage, loop.create_future()) for i in range(0, len(rows), most)]
        self._waiting.extend(parts)
        self._arrived.set()
        return await asyncio.gather(*(part.answer for part in parts))

    def _next_batch(self) -> list[Part]:
        """The oldest part, and all others of the same coverage that fit into a batch with it."""
        batch = [self._waiting.popleft()]
        rows, others = len(batch[0].rows), deque[Part]()
        for part in self._waiting:
            if part.coverage == batch[0].coverage and rows + len(part.rows) <= self.sizes[-1]:
                batch.append(part)
                rows += len(part.rows)
            else:
                others.append(part)
        self._waiting = others
        if not others:
            self._arrived.clear()
        return batch

    def _answers(self, batch: list[Part]) -> list[Answer | Exception]:
        """The answer to each part.

        If a batch of several parts fails or causes a warning, each part is forecast alone: errors and warnings must
        reach the request that caused them, and no other.
        """
        if len(batch) > 1:
            together = self._tried([row for part in batch for row in part.rows], batch[0].coverage)
            if isinstance(together, Answer) and not together.warnings:
                return _split(together.columns, [len(part.rows) for part in batch])
        return [self._tried(part.rows, part.coverage) for part in batch]

    def _tried(self, rows: list[Any], coverage: float) -> Answer | Exception:
        try:
            return self._forecast(rows, coverage)
        except Exception as error:  # whatever it is, the client must be answered
            return error

    def _forecast(self, rows: list[Any], coverage: float) -> Answer:
        """The forecasts of at most the largest batch of rows, padded with rows that cause no warnings."""
        size = next(size for size in self.sizes if size >= len(rows))
        padding = [rows[0] if self.example is None else self.example] * (size - len(rows))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # The application says so for each request, from the column ``unlike``; this would be about the whole batch.
            warnings.simplefilter("ignore", UnlikeTrainingWarning)
            inputs = self.forecaster.from_json(rows + padding)
            columns = self.forecaster.forecast(inputs, where="rows", coverage=coverage)
        # Other categories, such as DeprecationWarning, are about the code and not about the rows.
        words = [" ".join(str(each.message).split()) for each in caught if issubclass(each.category, UserWarning)]
        return Answer({name: column[: len(rows)] for name, column in columns.items()}, list(dict.fromkeys(words)))


def _split(columns: Columns, lengths: list[int]) -> list[Answer | Exception]:
    """The answers to parts of these lengths, from the forecasts of all their rows."""
    answers: list[Answer | Exception] = []
    first = 0
    for length in lengths:
        answers.append(Answer({name: column[first : first + length] for name, column in columns.items()}, []))
        first += length
    return answers
