"""peaks"""
def peaks(threads): return {"copy": 1e10}
