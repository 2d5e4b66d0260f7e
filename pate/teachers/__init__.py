"""Teachers: any object with ``fit(X, y)`` and ``predict(X)``, trained one by one or as a family.

spec             the ``[teachers]`` section of a recipe
protocol         the protocol, and the guarded calls through which models are used
adapters         from a model's name, class or instance to a teacher
families         teachers that are trained, and predict, all at once
linear           the built-in ``ridge``, and what linear teachers share
logistic         the built-in ``logistic``
sklearn_teacher  scikit-learn estimators, and their archives on disk
torch_teacher    torch modules, one by one
torch_family     torch modules of one architecture, trained as one program
torch_stack      what such a program needs: operations allowed, optimizers
placement        devices, memory and seeds
persist          trained teachers on disk
"""
