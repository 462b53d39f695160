"""What stands at the end of a command's help: calls to begin with, and what each is for."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("fedflux run --dataset digits --shift px", "ten clients turn and tint their digits: seconds, no data needed"),
        ("fedflux run --dataset csv --data-dir table.csv --rounds 30 --lr 0.05", "your own table, a column `client`"),
        ("fedflux run --dataset digits --shift px --unseen 5", "five more clients, met after training without labels"),
        ("fedflux run --out runs/first --resume", "after Ctrl-C or kill -9: on to the same numbers"),
    ),
    "compare": (
        ("fedflux compare --dataset digits --algorithms fedavg,flux --out runs/first", "two methods, side by side"),
        ("fedflux compare --algorithms all --levels 1-8 --seeds 42-46 --jobs 8", "a grid; stop and repeat it at will"),
    ),
    "report": (
        ("fedflux report runs/first", "a page of all runs in the folder"),
        ("fedflux report runs/first --export figures/", "the figures as PNG and SVG, the tables as LaTeX, too"),
    ),
    "predict": (
        ("fedflux predict runs/clinics --data new.npz", "beside it: new-predictions.npz"),
        ("fedflux predict runs/clinics --data new.csv --out answers.csv", "a row a record"),
    ),
    "export": (
        ("fedflux export runs/clinics --out bundle.zip", "what `fedflux serve` serves"),
        ("fedflux export runs/clinics --client north --out north/", "one client's model; it needs no fedflux"),
    ),
    "serve": (("fedflux serve bundle.zip", "on this machine, with a page to drop data on"),),
    "keys": (("fedflux keys add north --scopes assign,models", "a key for one client, shown once"),),
    "cluster": (("fedflux cluster runs/first --clusterer agglomerative", "other clusters from saved descriptors"),),
    "partition": (
        ("fedflux partition --dataset digits --shift pxgy --out parts/", "an .npz a client, and a manifest"),
    ),
    "fidelity": (("fedflux fidelity --levels 3", "one level, some minutes"),),
    "store": (
        ("fedflux store merge here/ there/", "join what two machines have run"),
        ("fedflux store export here/ --out cells.csv", "a row a run"),
    ),
    "reproduce": (
        ("fedflux reproduce --list", "the paper's tables and figures, and what each needs"),
        ("fedflux reproduce tab:dataset_comparison --tier smoke", "in seconds, on digits: is all in place?"),
    ),
    "bench": (("fedflux bench --clients 10,100 --runners loop,auto", "is the engine that is chosen the fast one?"),),
    "doctor": (("fedflux doctor", "a minute; exit status 1 where something needed is missing"),),
}


def epilog(command: str) -> str:
    """The examples of a command in rich's markup, a paragraph each: the help keeps no other line breaks."""
    return "\n\n".join(f"[bold cyan]{call}[/bold cyan]  {words}" for call, words in EXAMPLES[command])
