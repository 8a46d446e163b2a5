"""`--trace FILE`: what each process of a daemon does when, as one Chrome trace, which Perfetto shows. Every process."""
