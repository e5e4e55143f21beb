"""What a user states -> what a solver reads: standard form, presolve, diagnosis."""
