"""Programs whose decisions are promised but not made yet: it must get empty."""

from __future__ import annotations

_BY_FAMILY: dict[str, str] = {
    "item_traps": """
        loop_over_a_list sorted_list view_written_through_its_base
    """,
    "items": """
        adds_number multiplies_by_number list_of_three nested_list
    """,
    "items_kept": """
        held_as_a_list complex_number switched_off
    """,
    "mask_traps": """
        store_makes_it_require_grad storesintoabuffer two_axes_of_three sums_of_integers
        other_ways_to_count stores_into_a_view_of_an_argument
    """,
    "masks": """
        stores_a_number stores_into_an_argument stores_a_scalar_tensor stores_into_rows
        stores_a_row stores_selected_of_another stores_a_function_of_the_selected
        scales_selected adds_to_selected sum_of_selected sums_of_every_kind mean_of_selected
        mean_of_a_mask_made_here any_and_all_of_selected how_many_are_selected
        divides_by_how_many counts_by_where counts_by_nonzero masked_loss
        difference_of_selected mask_written_between tensor_written_between pools
        store_under_dynamic_shapes stores_through_a_view argument_seen_through_another
        stores_a_fraction
    """,
    "masks_kept": """
        returned computed_and_returned count_returned count_as_a_size appended_selection
        places_of_the_mask nonzero_returned switched_off
    """,
    "print_traps": """
        swapped_names one_tensor_under_two_names returns_nothing
    """,
    "prints": """
        logs_from_the_root
    """,
}
PENDING = frozenset(
    f"{family}.{name}" for family, names in _BY_FAMILY.items() for name in names.split()
)

# Programs whose results differ from eager: faults that are known, and must be repaired.
WRONG = frozenset({"items.alpha_of_a_sum", "items.weight_of_a_mean"})
