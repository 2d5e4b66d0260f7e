from dpsgd.cli import main

main()
