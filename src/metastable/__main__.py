from metastable.cli.app import main

main()
