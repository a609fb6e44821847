"""Files that run under an engine's Python: they import the standard library and that engine, nothing of ours.

vllm_gate/           a distribution with a plug-in of vLLM that lifts its list of target types: put on PYTHONPATH, or
                     copied beside the engine's packages
ask_vllm_gate.py     asks vLLM's own check of that list, without the plug-ins and with them
owned_processes.py   starts, finds and ends the processes of a server on its own machine, under any Python; the one file
                     that is imported by us, too

They are read by Pythons as old as the engines: 3.9 on.
"""
