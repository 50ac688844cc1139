"""Base classes of data loaders, as horovod.data has them: one gives _iterate() and __len__().

    class Loader(AsyncDataLoaderMixin, BaseDataLoader): ...     # the mixin is the first
"""

import queue
import threading

_SECONDS_BETWEEN_LOOKS = 0.1  # whether somebody has closed the loader
_END = object()


class BaseDataLoader:
    """Batches of _iterate(), each as _process_batch() gives it."""

    def __len__(self):
        raise NotImplementedError

    def _iterate(self):
        raise NotImplementedError

    def _process_batch(self, batch):
        return batch

    def __iter__(self):
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """A thread makes so many batches before they are asked for; 0: none does. What _iterate()
    raises, the loop over the loader raises. Each loop begins anew, also behind one that was left
    early."""

    def __init__(self, async_loader_queue_size=64, *args, **kwargs):
        self.async_loader_queue_size = async_loader_queue_size
        self._worker = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self):
        """Ends the thread, and a loop that waits for it."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __iter__(self):
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()
            return
        self.close_async_loader()
        worker = self._worker = _Worker(self._iterate, self.async_loader_queue_size)
        try:
            for batch in worker.batches():
                yield self._process_batch(batch)
        finally:
            worker.close()


class _Worker:
    """One loop over iterate(), in a thread."""

    def __init__(self, iterate, ahead):
        self._iterate = iterate
        self._made = queue.Queue(ahead)  # (batch, what was raised in its place)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def batches(self):
        while not self._closed.is_set():
            try:
                batch, error = self._made.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if batch is _END:
                return
            yield batch

    def close(self):
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self):
        try:
            for batch in self._iterate():
                if not self._put(batch):
                    return
            self._put(_END)
        except BaseException as error:
            self._put(None, error)

    def _put(self, batch, error=None):
        """False: nobody wants it any more."""
        while not self._closed.is_set():
            try:
                self._made.put((batch, error), timeout=_SECONDS_BETWEEN_LOOKS)
                return True
            except queue.Full:
                pass
        return False
