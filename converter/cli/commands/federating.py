"""The commands of federated training: `federated client`, `federated server` and `federated leaf`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from converter.cli.narration import Narrator
from converter.cli.options import Debug, ProgramPath, Quiet
from converter.cli.tables import Results
from converter.federated import Bounds, Exchange, Privacy, client_app, epsilon, read_rows, serve
from converter.federated.node import Link
from converter.federated.project import Project, StrategyName
from converter.program.file import read_program
from converter.program.manifest import Manifest
from converter.support.errors import UsageError
from converter.support.extras import require
from converter.support.interrupts import Asking
from converter.support.words import counted, size

app = typer.Typer(
    no_args_is_help=True, help="Train one model on many devices, with Flower: a client, a server, a leaf between."
)

SuperLinkAddress = Annotated[str, typer.Option(metavar="HOST:PORT", help="Of the SuperLink.")]
RootCertificates = Annotated[
    Path | None,
    typer.Option(metavar="FILE.pem", help="Whom to trust: the server's own pins it. None: whom the system trusts."),
]
Personal = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Tensors that stay with the clients: 'head/*'; may be given several times."),
]
MaxNorm = Annotated[float | None, typer.Option(min=0, help="Larger arrays are refused. None: by what was built.")]


@app.command()
def client(
    program: ProgramPath,
    data: Annotated[
        Path, typer.Option(metavar="ROWS.npz", help="The rows of this client: x, y and, where it has one, weight.")
    ],
    superlink: SuperLinkAddress,
    held_out: Annotated[
        Path | None, typer.Option(metavar="ROWS.npz", help="Rows to evaluate on. None: those of --data.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS, as on this machine itself.")] = False,
    root_certificates: RootCertificates = None,
    key: Annotated[
        Path | None, typer.Option(metavar="KEY.pem", help="A P-384 key that the server knows. None: a new one.")
    ] = None,
    max_epochs: Annotated[int, typer.Option(min=1, help="More in a round are refused.")] = Bounds.epochs,
    max_steps: Annotated[int, typer.Option(min=1, help="More in a round are refused.")] = Bounds.steps,
    max_rate: Annotated[float, typer.Option(min=0, help="A larger learning rate is refused.")] = Bounds.learning_rate,
    max_norm: MaxNorm = None,
    clip: Annotated[
        float | None, typer.Option(min=0, help="The largest norm of a round's change that leaves. None: any.")
    ] = None,
    noise: Annotated[
        float, typer.Option(min=0, help="Gaussian noise on each number that leaves, in units of --clip.")
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="Of (epsilon, delta) differential privacy.")] = Privacy.delta,
    personal: Personal = None,
    own: Annotated[
        Path | None,
        typer.Option(metavar="FILE.state", help="The whole model as this client trained it last; made if new."),
    ] = None,
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between two questions for work.")] = 3.0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a server that does not answer.")] = 300.0,
    idle: Annotated[float | None, typer.Option(min=0, help="Ends after so many seconds without work.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor cores that a step may use.")] = 1,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Take part in federated training: train PROGRAM on this machine's rows whenever a Flower server asks.

    Rows never leave this machine, and code of the server is never run: what leaves are the trained tensors. Ctrl-C lets
    it leave after the round that it is in, twice at once.
    """
    narrator = Narrator(quiet)
    if clip is None and noise:
        raise UsageError("noise is in units of clip: give --clip too", page="federated")
    privacy = None if clip is None else Privacy(clip, noise, delta)
    bounds = Bounds(max_epochs, max_steps, max_rate, norm=max_norm)
    rows = read_rows(data)
    judged = None if held_out is None else read_rows(held_out)
    opened = read_program(program)
    exchange = Exchange(opened, max_norm, personal or ())
    narrator.say(
        f"what leaves this machine in a round: {counted(len(exchange.trained), 'array')}, {size(exchange.nbytes())}"
    )
    if privacy is not None and noise:
        narrator.say(_told("all rows", privacy.epsilon, delta))
        if opened.manifest.row_clipping is not None:
            narrator.say(_of_one_row(privacy, opened.manifest, rows, bounds, bool(personal)))
    stop = Event()

    def leave() -> bool:
        narrator.say("leaving after this round")
        stop.set()
        return True

    with Asking(leave):
        done = serve(
            client_app(program, rows, judged, bounds, threads, privacy=privacy, personal=personal or (), own=own),
            superlink,
            exchange.nbytes(slots=True),
            insecure=insecure,
            certificates=root_certificates,
            key=key,
            poll=poll,
            patience=patience,
            idle=idle,
            stop=stop,
            say=narrator.say,
        )
    spent = f", epsilon {privacy.epsilon(done.trained):.4g} (delta {delta:g})" if privacy is not None and noise else ""
    Results().line(f"{counted(done.messages, 'message')} answered, {size(done.nbytes)} left this machine{spent}")


def _of_one_row(privacy: Privacy, manifest: Manifest, rows: Any, bounds: Bounds, personal: bool) -> str:
    """Return what the noise of a client does for any one of its rows, or why that is not known."""
    try:
        noise = privacy.one_row(manifest, rows, bounds, personal)
    except UsageError as error:
        return str(error)
    return _told("any one row", lambda rounds: epsilon(noise, rounds, privacy.delta), privacy.delta)


def _told(whose: str, of: Callable[[int], float], delta: float) -> str:
    """Return a line with the epsilon after 1, 10 and 100 rounds."""
    told = ", ".join(f"{of(rounds):.3g} after {counted(rounds, 'round')}" for rounds in (1, 10, 100))
    return f"differential privacy of {whose}: epsilon {told} (delta {delta:g})"


@app.command()
def server(
    program: ProgramPath,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The project to write.")],
    strategy: Annotated[StrategyName, typer.Option(help="Of Flower.")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    clients: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="An .npz for each client of a simulation.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(metavar="ROWS.npz", help="Rows that the server evaluates on after each round.")
    ] = None,
    min_nodes: Annotated[int, typer.Option(min=1, help="Clients that a round waits for.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Of a client in a round.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(min=0, help="Of a client. None: the program's own.")] = None,
    proximal_mu: Annotated[float, typer.Option(min=0, help="Of fedprox.")] = Project.proximal_mu,
    server_rate: Annotated[float, typer.Option(min=0, help="Of fedadam.")] = Project.server_rate,
    personal: Personal = None,
    debug: Debug = False,
) -> None:
    """Write a Flower project that trains PROGRAM on many clients: `flwr run` starts it."""
    project = Project(
        program, strategy, rounds, min_nodes, epochs, learning_rate, proximal_mu, server_rate, held_out, clients,
        tuple(personal or ()),
    )  # fmt: skip
    exchange = project.write(out)
    results = Results()
    results.line(f"wrote {out}; {out / 'README.md'} says how to run it")
    results.line(f"a round sends {size(exchange.nbytes())} to each client and as much back")


@app.command()
def leaf(
    program: ProgramPath,
    superlink: SuperLinkAddress,
    state: Annotated[Path, typer.Option(metavar="FOLDER", help="What the leaf knows, with its key; made if new.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where phones find the leaf.")] = "127.0.0.1:9000",
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="For TLS to phones. None: a proxy in front has it.")
    ] = None,
    certificate_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="Of the certificate.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="To the SuperLink without TLS.")] = False,
    root_certificates: RootCertificates = None,
    phones: Annotated[
        int | None, typer.Option(min=1, help="Answers that a round waits for. None: of all that are online.")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="With fewer answers a round ends with an error.")] = 1,
    wait: Annotated[float, typer.Option(min=1, help="Seconds after which a round ends with what there is.")] = 600.0,
    buffer: Annotated[
        int | None,
        typer.Option(min=1, help="FedBuff: a round ends after so many answers, and late ones count in later rounds."),
    ] = None,
    stale: Annotated[int, typer.Option(min=0, help="Of --buffer: answers from more rounds before are refused.")] = 10,
    max_rows: Annotated[int, typer.Option(min=1, help="A phone that says it has more is refused.")] = 1_000_000,
    max_phones: Annotated[int, typer.Option(min=1, help="More do not register.")] = 100_000,
    max_norm: MaxNorm = None,
    personal: Personal = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for a SuperLink that is gone.")] = 300.0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Hand the rounds of a SuperLink on to many phones, and answer with their weighted mean.

    Phones speak to it as to a SuperLink. A leaf that was stopped goes on in the same round when it is started again.
    """
    require("federated", "a leaf")
    from converter.federated.leaf import Leaf, Place, Terms

    narrator, stop = Narrator(quiet), Event()
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) >= 1 << 16:
        raise UsageError(f"listen must be HOST:PORT, got {listen!r}", page="federated")
    served = Leaf(
        read_program(program),
        Link(superlink, insecure, root_certificates, patience),
        state,
        Place(host.strip("[]"), int(port), certificate, certificate_key),
        Terms(phones, least, wait, buffer, stale, max_rows, max_phones),
        narrator.say,
        max_norm,
        personal or (),
    )
    narrator.say(f"phones find it at {host}:{served.port}{' without TLS' * (certificate is None)}")

    def leave() -> bool:
        stop.set()
        return True

    with Asking(leave):
        served.serve(stop)
