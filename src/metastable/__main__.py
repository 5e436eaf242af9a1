from metastable.cli import main

main()
