"""All tables and figures of the paper with data, by name, in its order."""

from fedflux.errors import unknown
from fedflux.studies.paper import ablations, clients, heterogeneity, mixed, showing, triggers
from fedflux.studies.paper.study import Study

DESCRIPTIONS = tuple(
    Study(name, title, "Nothing is measured.", kind="description")
    for name, title in (
        ("table:table_sum", "What methods can do, in words"),
        ("table:2type", "Clustered methods by what they cluster by, in words"),
        ("tab:hetero_setting_8", "What the eight levels are (docs/runs.md and --shift, --level)"),
        ("tab:theoretical_analysis_costs", "Costs as formulas (those measured: docs/baselines.md)"),
    )
)
_THEMES = (
    *heterogeneity.STUDIES,
    *clients.STUDIES,
    *mixed.STUDIES,
    *ablations.STUDIES,
    *triggers.STUDIES,
    *showing.STUDIES,
)
_MADE = {study.name: study for study in _THEMES}
_TABLES = (
    *("tab:dataset_comparison", "tab:comparison_haccs", "tab:n_client_all", "tab:n_client_5", "tab:n_client_25"),
    *("tab:n_client_50", "tab:n_client_100", "tab:scaling_1200", "tab:m11", "tab:m12", "tab:m13", "tab:main_chex"),
    *("tab:partial_participation", "tab:datasize_combined", "tab:lowdata_combined", "tab:ablation_clustering_mnist"),
    *("tab:ablation_clustering_cifar", "tab:ablation_random", "tab:ablation", "tab:dp_effect", "tab:flux_soft"),
    "tab:eps_R1",
)
_FIGURES = (
    *("fig:hetero_mnist", "fig:hetero", "fig:N_clients", "fig:stop_round", "fig:trend_fedavg"),
    *("fig:threshold_detection", "fig:pca_clustering", "fig:appendix_ANDA_mnist", "fig:appendix_ANDA_cifar10"),
)
STUDIES = {
    **{name: _MADE[name] for name in _TABLES},
    **{study.name: study for study in DESCRIPTIONS},
    **{name: _MADE[name] for name in _FIGURES},
}


def find_study(name: str) -> Study:
    """By its name, with or without `tab:` or `fig:`."""
    whole = [study for study in STUDIES.values() if name in (study.name, study.short)]
    if not whole:
        raise unknown("table or figure", name, [study.short for study in STUDIES.values()])
    return whole[0]
