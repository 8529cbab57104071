"""Plots drawn in a process of their own, which loads matplotlib while the search still runs."""

from __future__ import annotations

import contextlib
import io
import pickle
import signal
import subprocess
import sys
from pathlib import Path

from dfmodel.mapping.result import Result

_CODE = "from dfmodel.reporting.plot_worker import serve; serve()"


class PlotWorker:
    """A waiting process; `draw` hands it a result, `close` ends it unused."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start(self, result: Result, folder: Path) -> None:
        """Begin to draw into `folder`."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(pickle.dumps((result, str(folder))))
            self._process.stdin.close()

    def finish(self, result: Result, folder: Path) -> None:
        """Wait for the plots; where the process failed they are drawn here, so that errors are seen."""
        if self._process.wait() != 0:
            from dfmodel.reporting.plots import write_plots

            write_plots(result, folder)

    def close(self) -> None:
        """End the process if it still waits."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def serve() -> None:
    """Load what drawing needs, then draw what is sent. Interrupts are the command's business: it ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from matplotlib.figure import Figure

    from dfmodel.reporting.plots import write_plots

    # a first picture loads fonts and formatters
    first = Figure()
    first.add_subplot().loglog([1, 10], [1, 10], label="a")
    first.savefig(io.BytesIO(), format="png")
    sent = sys.stdin.buffer.read()
    if sent:
        result, folder = pickle.loads(sent)
        write_plots(result, Path(folder))
